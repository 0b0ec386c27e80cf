"""Word lists."""

W = str.split
NAMES = W(
    "Maya Tom Lena Omar Sofia Ben Nina Raj Ella Hugo Iris Leo Zoe Karl Anna Felix Clara Paul Emma Noah Mia Luca Sara Erik Julia Max Laura Finn Rosa Adam Nora Ivan Alice Bob Carol David Eva Frank Grace Henry Ines Jack Kate Liam Mona Oscar Petra Quinn Ruth Sam Tina Uma Victor Wendy Yara Zack Amir Bella Chen Dana Elif Fatima George Hana Igor Jonas Kira Lars Marta Niko Olga Pablo Rita Stefan Tara Ugo Vera Walter Ximena Yusuf Aisha Boris Cora Diego Emil Freya Gina Harald Ida Jin Kofi Lily Mateo Naomi Otto Priya Rafael Selma Theo Ursula Vince Willa Yuki Zara José Zoë Chloé Björn André Noël"
)
NAMES_HELD = W("Martin Sandra Peter Monica Robin Daniel Teresa Conrad Silvia Marcus")
COLOURS = W("red blue green yellow orange purple pink black white brown grey teal violet gold silver turquoise")
CITIES = W(
    "Paris Rome Berlin Madrid Oslo Vienna Lisbon Prague Dublin Tokyo Cairo Lima Delhi Seoul Athens Boston Chicago Toronto Sydney Munich Hamburg Zurich Geneva Milan Naples Lyon Porto Seville Nairobi Havana Kyoto Osaka Bergen Malmö Córdoba Bogotá"
)
FOODS = W(
    "pizza pasta soup sushi rice salad cake bread cheese curry noodles tacos pancakes dumplings chocolate burgers stew waffles"
)
ANIMALS = W(
    "dog cat horse cow rabbit fox bear lion tiger wolf owl mouse duck goat sheep frog snake whale penguin monkey elephant zebra camel parrot turtle"
)
HOBBIES = W(
    "chess painting hiking cooking swimming reading dancing singing cycling fishing gardening photography climbing running sailing"
)
JOBS = W("teacher nurse pilot farmer baker doctor writer painter plumber lawyer engineer carpenter chef driver tailor")
MONTHS = W("January February March April May June July August September October November December")
DAYS = W("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
FRUITS = W("apple banana cherry grape lemon mango orange peach pear plum kiwi melon")
LISTS = {
    "fruits": FRUITS,
    "animals": W("dog cat horse cow sheep lion tiger bear wolf fox rabbit mouse"),
    "colours": W("red blue green yellow orange purple pink black white brown grey teal"),
    "vegetables": W("carrot potato tomato onion pepper spinach cabbage broccoli pea bean radish leek"),
    "countries": W("France Germany Spain Italy Japan Brazil Canada Egypt India Kenya Norway Peru"),
    "sports": W("football tennis basketball swimming running cycling rowing boxing golf hockey skiing volleyball"),
    "instruments": W("piano guitar violin flute drum trumpet harp cello clarinet organ banjo saxophone"),
    "tools": W("hammer saw screwdriver wrench drill pliers chisel file level axe ladder shovel"),
    "birds": W("eagle owl robin sparrow crow swan duck parrot penguin pigeon heron stork"),
    "trees": W("oak pine maple birch willow elm cedar ash beech fir poplar chestnut"),
    "flowers": W("rose tulip daisy lily violet orchid poppy iris lotus jasmine sunflower lavender"),
    "drinks": W("water tea coffee milk juice lemonade cocoa soda cider smoothie"),
    "clothes": W("shirt trousers jacket hat scarf gloves socks shoes dress coat belt skirt"),
    "vehicles": W("car bus train bicycle truck boat plane tram scooter ship helicopter taxi"),
    "planets": W("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune"),
    "shapes": W("circle square triangle rectangle oval star pentagon hexagon cube sphere"),
    "rooms": W("kitchen bedroom bathroom hall office cellar attic garage pantry library"),
}
NUMW = W(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"
)
NOUNS = W(
    "apple house river stone cloud table garden window candle mirror bottle basket ladder engine pencil rocket bridge castle forest island mountain valley harbor market station lantern blanket button carpet compass feather hammer jacket kettle letter magnet needle oyster packet rabbit saddle ticket tunnel velvet wagon anchor barrel copper dragon falcon goblet helmet icicle jungle kitten lemon monkey nickel orchid pepper quartz ribbon silver temple violin walnut yogurt zipper"
)
VERBS = W("walks runs looks jumps sings sleeps waits reads writes paints swims climbs drives dances laughs cooks")
ADJ = W("small big red blue old new quiet bright dark happy green cold warm soft round gentle clever brave tiny golden")
WORDS = sorted(
    set(
        NOUNS
        + FRUITS
        + ANIMALS
        + COLOURS
        + W(
            "cat dog sun sea sky cup hat pen box bus car map key bed egg ice ant bee owl pig rat toy jam net oak pan rug tea van wax yak zoo star moon tree book door fish bird ship rain snow wind fire gold hand foot nose lamp leaf milk nest pond road rope sand seed song wall wood yarn light water bread chair music paper plant smile tiger train world"
        )
    )
)
SYL = "ba be bi bo bu da de di do du fa fe fi fo ga go ka ke ki ko la le li lo lu ma me mi mo mu na ne ni no ra re ri ro ru sa se si so ta te ti to va ve vi vo za ze zo zu".split()
EMOJI = list("😀🎉🚀🌍🐱🐶🍎⭐🔥💡🎵🌈🍕⚽🌙❤👍🦊🐢🌸")
CJK = list("你好世界日本東京山川水火木金土月人大小中国語学生先生猫犬花海空雨雪春夏秋冬今天明天朋友茶米")
OTHER = W(
    "naïve café déjà über größe señor mañana façade crème brûlée smörgåsbord Привет мир спасибо こんにちは ありがとう 안녕하세요 ευχαριστώ שלום مرحبا ñandú żółw češka dobrý çok güzel"
)
